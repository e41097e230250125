"""Two versions over one Redis: this router answers from the entries that the previous release wrote."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli_helpers import run_cli
from tests.support.paths import ROOT
from tests.support.redis_process import RedisServer
from tests.support.router_server import MakeRouter
