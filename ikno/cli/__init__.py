"""The command line. Everything heavy is imported inside the commands."""

import sys
from typing import Annotated

import typer

from ikno import __version__
from ikno.cli import learn, options, screen
from ikno.cli.compare import compare, efficiency
from ikno.cli.data import data
from ikno.cli.reproduce import reproduce
from ikno.errors import UserError
from ikno.registry import import_plugin

app = typer.Typer(
    help="Learn the solution operators of partial differential equations on arbitrary point clouds.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

app.add_typer(data, name="data")
for command in (
    *(learn.train, learn.tune_scales, learn.evaluate, learn.predict, learn.plot, learn.runs, learn.calibrate),
    *(compare, efficiency, reproduce),
):
    app.command()(command)


@app.callback(invoke_without_command=True)
def _options(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
    plugin: Annotated[
        list[str] | None, typer.Option("--import", metavar="MODULE", help="A module with models or parts of your own.")
    ] = None,
) -> None:
    for module in plugin or []:
        import_plugin(module)
    if version:
        print(f"ikno {__version__}")
        raise typer.Exit


@app.command()
def models(
    overrides: options.Overrides = None,
    dim: Annotated[int, typer.Option(min=1, max=3, help="Dimension of space.")] = 2,
    in_channels: Annotated[int, typer.Option(min=0, help="Input channels per point.")] = 1,
    out_channels: Annotated[int, typer.Option(min=1, help="Output channels per point.")] = 1,
    as_json: options.Json = False,
) -> None:
    """List the models with their number of parameters; with settings, the models that have these."""
    from ikno.models import MODELS, build

    MODELS.look_outside()
    settings = options.parse_overrides(overrides or [])
    known = {name: v for name, v in MODELS.items() if settings.keys() <= v.settings.model_fields.keys()}
    rows = []
    for name, variant in (known or MODELS).items():  # a setting that no model has is refused by the first
        model = build(name, in_channels=in_channels, out_channels=out_channels, dim=dim, **settings)
        size = sum(p.numel() for p in model.parameters())
        rows.append({"model": name, "parameters": size, "summary": variant.summary})
    if as_json:
        return screen.show_json(rows)
    lines = [[row["model"], f"{row['parameters']:,}", row["summary"]] for row in rows]
    screen.show_table(("model", "parameters", "summary"), lines)


def main() -> None:
    """Run the command line; a UserError is one line on standard error and exit code 2."""
    debug = "--debug" in sys.argv  # anywhere in the line
    try:
        app([word for word in sys.argv[1:] if word != "--debug"])
    except UserError as error:
        if debug:
            raise
        print(f"Error: {error}", file=sys.stderr)
        sys.exit(2)
