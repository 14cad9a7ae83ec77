"""The wheelhouse: where checked wheels are published, found, installed from and looked after."""

from sglwheel.wheelhouse.house import Wheelhouse
from sglwheel.wheelhouse.installcheck import InstallReport, install_check
from sglwheel.wheelhouse.lines import Lines
from sglwheel.wheelhouse.publish import publish
from sglwheel.wheelhouse.record import Record, Release

__all__ = ["InstallReport", "Lines", "Record", "Release", "Wheelhouse", "install_check", "publish"]
