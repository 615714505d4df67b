"""What may go wrong while a model is fetched."""


class SourceFault(Exception):
    """The source does not give the model; the message is a sentence without its full stop."""
