"""Window → risk: data sets, features, network, baselines, training, evaluation, serving.

Nothing here imports TensorFlow or scikit-learn before a function needs it, so that reading
features or a model card stays cheap.
"""
