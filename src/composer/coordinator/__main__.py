"""`python -m composer.coordinator`: the same as `composer coordinator`."""

from composer.cli.main import coordinator_app

if __name__ == "__main__":
    coordinator_app(prog_name="python -m composer.coordinator")
