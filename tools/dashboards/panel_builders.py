"""How each kind of panel looks."""

from collections.abc import Sequence

from grafana_foundation_sdk.builders import common as build_common
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import heatmap, stat, statetimeline, timeseries
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode

from tools.dashboards.description import Panel

AnyPanel = timeseries.Panel | stat.Panel | statetimeline.Panel | heatmap.Panel


def new_panel(panel: Panel, targets: Sequence[Dataquery]) -> AnyPanel:
    """Without number and position."""
    match panel.kind:
        case "timeseries":
            built: AnyPanel = _timeseries(panel)
        case "stat":
            built = _stat(panel)
        case "state timeline":
            built = _state_timeline(panel)
        case "heatmap":
            built = _heatmap(panel)
    return built.title(panel.title).description(panel.description).targets([*targets])


def _timeseries(panel: Panel) -> timeseries.Panel:
    built = (
        timeseries.Panel()
        .unit(panel.unit)
        .line_width(1)
        .fill_opacity(30 if panel.stacked else 8)
        .show_points(common.VisibilityMode.AUTO)
        .legend(_legend())
        .tooltip(_tooltip())
        .color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.PALETTE_CLASSIC_BY_NAME))
    )
    if panel.stacked:
        built = built.stacking(build_common.StackingConfig().mode(common.StackingMode.NORMAL))
    if panel.minimum is not None:
        built = built.min(panel.minimum)
    if panel.maximum is not None:
        built = built.max(panel.maximum)
    if panel.thresholds:
        style = build_common.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        built = built.thresholds(_thresholds(panel)).thresholds_style(style)
    for regex, colour in panel.colours.items():
        built = built.override_by_regexp(_as_regexp(regex), [_fixed_colour(colour)])
    return built


def _stat(panel: Panel) -> stat.Panel:
    return (
        stat.Panel()
        .unit(panel.unit)
        .color_mode(common.BigValueColorMode.VALUE)
        .graph_mode(common.BigValueGraphMode.NONE)
        .reduce_options(build_common.ReduceDataOptions().calcs(["lastNotNull"]))
        .color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
        .thresholds(_thresholds(panel))
    )


def _state_timeline(panel: Panel) -> statetimeline.Panel:
    texts = {
        str(value): dashboard.ValueMappingResult(text=text, color=colour, index=place)
        for place, (value, (text, colour)) in enumerate(panel.texts.items())
    }
    return (
        statetimeline.Panel()
        .unit(panel.unit)
        .mappings([dashboard.ValueMap(texts)])
        .show_value(common.VisibilityMode.NEVER)
        .row_height(0.8)
        .legend(_legend())
        .color_scheme(build.FieldColor().mode(dashboard.FieldColorModeId.THRESHOLDS))
        .thresholds(_thresholds(panel))
    )


def _heatmap(panel: Panel) -> heatmap.Panel:
    return (
        heatmap.Panel()
        .unit(panel.unit)
        .calculate(False)
        .color(_heatmap_colours())
        .y_axis(heatmap.YAxisConfig().unit(panel.unit))
        .exemplars_color("rgba(255,152,48,0.9)")
        .show_legend()
    )


def _heatmap_colours() -> heatmap.HeatmapColorOptions:
    return heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Turbo").steps(64)


def _legend() -> build_common.VizLegendOptions:
    return (
        build_common.VizLegendOptions()
        .display_mode(common.LegendDisplayMode.LIST)
        .placement(common.LegendPlacement.BOTTOM)
        .show_legend(True)
        .calcs([])
    )


def _tooltip() -> build_common.VizTooltipOptions:
    return build_common.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)


def _thresholds(panel: Panel) -> build.ThresholdsConfig:
    """The first step is the base: Grafana gives it no value."""
    steps = panel.thresholds or ((0.0, "text"),)
    return (
        build.ThresholdsConfig()
        .mode(dashboard.ThresholdsMode.ABSOLUTE)
        .steps([dashboard.Threshold(value if place else None, colour) for place, (value, colour) in enumerate(steps)])
    )


def _as_regexp(pattern: str) -> str:
    """Grafana takes flags only in the form /pattern/flags."""
    return f"/{pattern.removeprefix('(?i)')}/{'i' if pattern.startswith('(?i)') else ''}"


def _fixed_colour(colour: str) -> dashboard.DynamicConfigValue:
    return dashboard.DynamicConfigValue("color", {"mode": "fixed", "fixedColor": colour})
