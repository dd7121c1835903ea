"""Trees of fitted estimators, written for other programs: text, source, other libraries' trees.

All but `shap_values` take one tree, the most probable one unless another rank is named. They need
hard trees whose splits look at one column each.
"""

from bdtppl.export.markdown import to_markdown
from bdtppl.export.onnx_model import to_onnx
from bdtppl.export.python_source import to_python
from bdtppl.export.scikit_learn import to_sklearn
from bdtppl.export.shap_explanation import shap_values
from bdtppl.export.sql import to_sql
from bdtppl.export.tree_json import to_json

__all__ = ["shap_values", "to_json", "to_markdown", "to_onnx", "to_python", "to_sklearn", "to_sql"]
