"""``glassformer view``: a local page that visualises what a model computes, or a training run."""

import os
import sys
import webbrowser
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from glassformer.cli.errors import InputError
from glassformer.cli.options import LoadingOptions, computing_command, setting

if TYPE_CHECKING:
    from glassformer.viewer.contents import Contents

SECRET = 16  # characters of a token that other machines may try to guess


@dataclass(frozen=True, kw_only=True)
class PageOptions:
    """What the page shows.

    Args:
        text: show this text first.
        compare: a second model or run beside the first. Repeatable.
        max_tokens: accept texts of up to this many tokens.
    """

    panel: ClassVar[str] = "Page"
    text: str | None = setting(None, metavar="TEXT")
    compare: list[str] | None = setting(None, metavar="MODEL")
    max_tokens: int = setting(1024, min=8, max=4096)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The address of the page.

    Args:
        host: listen on this address; one that other machines can reach needs --token.
        port: listen on this port; 0: a free one.
        token: the secret part of the address; by default a random one.
        open_page: open the page in a browser; by default only on a terminal, and if a browser is found.
    """

    panel: ClassVar[str] = "Server"
    host: str = setting("127.0.0.1", metavar="ADDRESS")
    port: int = setting(0, min=0, max=65535)
    token: str | None = setting(None, metavar="TOKEN")
    open_page: bool | None = setting(None, flags=["--open/--no-open"])


@dataclass(frozen=True, kw_only=True)
class ExportOptions:
    """A file instead of a server.

    Args:
        export: write the page as one HTML file that needs no server, and exit.
        full_head: write all attention weights of this head, such as decoder.0.3 or cross.2.1, even into a file that has
            only the largest weights of others. Repeatable.
    """

    panel: ClassVar[str] = "Export"
    export: Path | None = setting(None, metavar="FILE")
    full_head: list[str] | None = setting(None, metavar="KIND.LAYER.HEAD")


@dataclass(frozen=True, kw_only=True)
class ViewLoadingOptions(LoadingOptions):
    """How the model is loaded.

    Args:
        dtype: load weights as float32, bfloat16, float16 or float64; default float32.
    """


@computing_command
def view(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A shipped model (glassformer models), a folder, a GGUF or llama2.c file, a name in the Hugging Face "
            "cache, or the folder of a training run.",
        ),
    ],
    page: PageOptions,
    server: ServerOptions,
    export: ExportOptions,
    loading: ViewLoadingOptions,
) -> None:
    """Visualise what a model computes, or a training run, as a page in the browser.

    Unless --host says otherwise, only this machine can reach the server, and only by an address with a secret token.
    The server makes no outgoing requests. Ctrl-C ends it.

    Weights are loaded as float32 unless --dtype is given, so that the numbers shown are not rounded to half precision.
    """
    if export.full_head and export.export is None:
        raise InputError("--full-head is for an exported file; add --export FILE.")
    if export.export is None:
        _check_server(server)
    from glassformer.training.malloc import keep_freed_memory
    from glassformer.viewer.contents import open_contents

    keep_freed_memory()  # every question about a long text needs the same large blocks again
    state: dict[str, Any] = {} if page.text is None else {"text": page.text}
    exact = loading if loading.dtype is not None else replace(loading, dtype="float32")
    contents = open_contents([model, *(page.compare or [])], exact.load, max_tokens=page.max_tokens, state=state)
    if not contents.subjects and not contents.runs:
        raise InputError(f"{model} holds neither a model nor a run.")
    if export.export is not None:
        from glassformer.viewer.export import write_page

        written = write_page(contents, export.export, heads=export.full_head or ())
        typer.echo(f"wrote {export.export} ({written / 1e6:.1f} MB)")
        return
    _serve(contents, server)


def can_serve() -> bool:
    """Whether the packages of the server are installed."""
    return all(find_spec(name) is not None for name in ("starlette", "uvicorn"))


def has_browser() -> bool:
    """Whether there is a browser with windows to open a page in."""
    if sys.platform not in ("win32", "darwin") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        return False
    try:
        webbrowser.get()
    except webbrowser.Error:
        return False
    return True


def _check_server(options: ServerOptions) -> None:
    """Raise where the server could not start, or would be open to others."""
    if not can_serve():
        raise InputError(
            "the viewer needs starlette and uvicorn: pip install 'glassformer[viewer]'. "
            "Without them, --export FILE writes the page as a file."
        )
    from glassformer.viewer.server import LOOPBACK

    if options.host not in LOOPBACK:
        if options.token is None:
            raise InputError(
                f"--host {options.host} lets other machines reach this page; choose a secret with --token, or leave "
                "--host out."
            )
        if len(options.token) < SECRET:
            raise InputError(f"with --host {options.host}, --token needs at least {SECRET} characters.")


def _serve(contents: "Contents", options: ServerOptions) -> None:
    from glassformer.viewer import server

    token = options.token or server.new_token()
    app = server.make_app(contents, token=token, host=options.host)
    listeners = server.listen_here(options.host, options.port)
    host = f"[{options.host}]" if ":" in options.host else options.host
    if host == "localhost" and len(listeners) == 1:  # on ::1 another program may have this port
        host = "127.0.0.1"
    address = f"http://{host}:{listeners[0].getsockname()[1]}/{token}/"
    typer.echo(address)
    if options.open_page if options.open_page is not None else sys.stdout.isatty() and has_browser():
        webbrowser.open(address)
    typer.echo("Ctrl-C ends it.", err=True)
    try:
        server.serve(app, listeners)
    except KeyboardInterrupt:
        pass
    finally:
        for listener in listeners:
            listener.close()
