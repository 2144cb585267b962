"""When: the formula language and the windows it opens. Pure: no clock, no input or output, nothing of ours imported."""

from schedules.daytable import DayTable, FormulaFailures, day_table
from schedules.formula import Formula
from schedules.formula_errors import FormulaEvaluationError, FormulaSyntaxError
from schedules.levels import ALWAYS, Applicable, Level, applicable
from schedules.schedule import LOOK_BACK, Schedule, Window

__all__ = [
    "ALWAYS",
    "LOOK_BACK",
    "Applicable",
    "DayTable",
    "Formula",
    "FormulaEvaluationError",
    "FormulaFailures",
    "FormulaSyntaxError",
    "Level",
    "Schedule",
    "Window",
    "applicable",
    "day_table",
]
