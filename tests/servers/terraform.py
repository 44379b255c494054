"""Terraform, where a machine has it: planning a module without any account, and without the network."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

VARIABLE = "TERRAFORM_PLUGINS"
PROVIDER = """
provider "aws" {
  skip_credentials_validation = true
  skip_metadata_api_check     = true
}
"""


def plugins() -> Path | None:
    """Return the folder of providers that the variable names, if it names one."""
    named = os.environ.get(VARIABLE, "")
    return Path(named) if named not in ("", "no") else None


def left_out() -> str | None:
    """Say why Terraform's plans are not tested here, if so. No package registry has Terraform's AWS provider."""
    if plugins() is not None:
        return None
    return (
        f"tests marked `terraform`; to run them, set {VARIABLE} to a folder of providers, as `terraform providers "
        "mirror` makes it"
    )


class Terraform:
    """A copy of a module, ready to be planned."""

    def __init__(self, module: Path, folder: Path, environment: dict[str, str]) -> None:
        """Copy the module and give it its provider, out of the folder alone."""
        self._folder = folder
        # Without the caller's own settings, which may send Terraform elsewhere.
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("TF_", "AWS_"))}
        self._environment = {**kept, **environment, "CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
        shutil.copytree(module, folder, dirs_exist_ok=True)
        (folder / "provider.tf").write_text(PROVIDER)
        self.run("init", "-input=false", f"-plugin-dir={plugins()}")

    def run(self, *arguments: str) -> str:
        """Run a command of Terraform's; return what it prints."""
        ran = self.tried(*arguments)
        assert ran.returncode == 0, ran.stderr
        return ran.stdout

    def tried(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command that may fail."""
        command = ["terraform", *arguments, *(["-no-color"] if arguments[0] != "fmt" else [])]
        return subprocess.run(
            command, cwd=self._folder, env=self._environment, capture_output=True, text=True, check=False
        )

    def plan(self, **variables: Any) -> dict[str, Any]:
        """Plan with these variables; return what would be made, by address."""
        (self._folder / "given.tfvars.json").write_text(json.dumps(variables))
        self.run("plan", "-input=false", "-var-file=given.tfvars.json", "-out=plan")
        planned = json.loads(self.run("show", "-json", "plan"))
        resources = planned["planned_values"]["root_module"]["resources"]
        return {one["address"]: one["values"] for one in resources if one["mode"] == "managed"}
