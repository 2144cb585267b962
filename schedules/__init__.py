"""When: the formula language and the windows it opens. Pure: no clock, no input or output, nothing else imported."""

if __name__ != "balancer.schedules":
    raise ImportError("this folder is the package balancer.schedules: a module under two names would be two modules")

from balancer.schedules.day_table import DayTable, FormulaFailures, day_table
from balancer.schedules.formula import Formula
from balancer.schedules.language import FormulaEvaluationError, FormulaSyntaxError
from balancer.schedules.schedule import ALWAYS, LOOK_BACK, Applicable, Level, Schedule, Window, applicable

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
