"""`python -m composer.worker MODULE...`: the same as `composer worker MODULE...`."""

from composer.cli.main import worker_app

if __name__ == "__main__":
    worker_app(prog_name="python -m composer.worker")
