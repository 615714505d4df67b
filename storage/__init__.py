if not __name__.startswith("acs."):  # one name per module: event topics store it for good
    raise ImportError(f"import acs.{__name__}, not {__name__}")
