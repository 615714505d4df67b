"""Serve runs us on uvloop, whose transports are not asyncio's: what is said here holds on both."""

import asyncio

import uvloop


def pytest_asyncio_loop_factories():
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}
