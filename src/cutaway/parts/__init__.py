"""One file per idea of the lecture notes; nothing here knows of whole models.

Axes in tensor names, here and in `models/`:

    B batch   T query length   S key length   D model width   H query heads   G key/value heads   K head width
    F feed-forward width   V vocabulary   L layers   P patches   C classes   W beams   I, J rows and columns of an image
    E whatever one patch, or the input of a layer, is wide   N rows of a plain table
"""
