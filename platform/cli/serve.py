"""`acs serve`: run a server in the foreground."""

from __future__ import annotations

import argparse


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="run a server in the foreground; Ctrl-C ends it",
        description="Prepare the models, start Ray, Serve and the engines, and serve until Ctrl-C or TERM. "
        "Settings are environment variables: ACS_DATA, ACS_HOST, ACS_PORT, ACS_CATALOGUE, ACS_MODELS, "
        "ACS_INGRESS_REPLICAS, ACS_STOP_GRACE_S, ACS_METRICS_HOST, ACS_LIMIT_…, and RAY_ADDRESS to join a cluster.",
    )
    parser.set_defaults(handler=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    from acs.platform.server import supervisor

    return supervisor.serve()
