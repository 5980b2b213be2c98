"""Models of scikit-learn, LightGBM and XGBoost, which their converters write as ONNX files; random trees: onnxruntime."""
PACKAGES = ("scikit-learn==1.9.1 lightgbm==4.7.0 xgboost==3.2.0 skl2onnx==1.20.0 onnxmltools==1.16.0 pandas onnxruntime==1.32.0 "
            "onnx==1.23.2 numpy==2.4.6")
MEETS = ("models that are fitted, converted by skl2onnx and onnxmltools, and run by moth's session against onnxruntime, on rows "
         "that they have not seen: trees, lines, supports, neighbours, networks, what stands before them, `ZipMap`")
LIMITS = "inputs that are tables of named columns of texts and numbers (DictVectorizer, CastMap); what a converter refuses itself"

import json
import os
import warnings

import lightgbm as lgb
import numpy as np
import onnx
import onnxruntime as ort
import xgboost as xgb
from onnxmltools import convert_lightgbm, convert_xgboost
from onnxmltools.convert.common.data_types import FloatTensorType
from skl2onnx import to_onnx
from sklearn import (cluster, decomposition, discriminant_analysis, ensemble, gaussian_process, impute, linear_model, multiclass,
                     naive_bayes, neighbors, neural_network, pipeline, preprocessing, svm, tree)

import moth

warnings.filterwarnings("ignore")
ort.set_default_logger_severity(4)
g = np.random.default_rng(0)
X = g.standard_normal((300, 6)).astype("f4")
two, three = (X[:, 0] + X[:, 1] * X[:, 2] > 0).astype(int), np.digitize(X[:, 0] + X[:, 3], [-0.7, 0.7])
one, both = (X[:, 0] * 2 + X[:, 1] ** 2).astype("f4"), X[:, :2] * 2 + X[:, 2:4] ** 2
words = np.array(["no", "yes"])[two]
types = [("x", FloatTensorType([None, 6]))]
L, XG = {"n_estimators": 20, "verbose": -1}, {"n_estimators": 20}


def light(m, y, **o):
    return convert_lightgbm(m.fit(X, y), initial_types=types, target_opset=15, **o)


def of_sklearn(m, y, plain):
    return to_onnx(m.fit(X) if y is None else m.fit(X, y), X[:1], options={type(m): {"zipmap": False}} if plain else None, target_opset=17)


todo = {
    "LightGBM binary": lambda: light(lgb.LGBMClassifier(**L), two, zipmap=False),
    "LightGBM zipmap": lambda: light(lgb.LGBMClassifier(**L), two),
    "LightGBM classes": lambda: light(lgb.LGBMClassifier(**L), three, zipmap=False),
    "LightGBM regression": lambda: light(lgb.LGBMRegressor(**L), one),
    "LightGBM forest": lambda: light(lgb.LGBMRegressor(boosting_type="rf", subsample=0.5, subsample_freq=1, **L), one),
    "LightGBM poisson": lambda: light(lgb.LGBMRegressor(objective="poisson", **L), one**2),
    "XGBoost binary": lambda: convert_xgboost(xgb.XGBClassifier(**XG).fit(X, two), initial_types=types, target_opset=15),
    "XGBoost classes": lambda: convert_xgboost(xgb.XGBClassifier(**XG).fit(X, three), initial_types=types, target_opset=15),
    "XGBoost regression": lambda: convert_xgboost(xgb.XGBRegressor(**XG).fit(X, one), initial_types=types, target_opset=15),
}
for m, y, plain in [
    (ensemble.RandomForestClassifier(10), two, True), (ensemble.RandomForestClassifier(11), three, True),
    (ensemble.RandomForestClassifier(12), words, True), (ensemble.RandomForestClassifier(4), words, False),
    (ensemble.RandomForestRegressor(10), one, False), (ensemble.RandomForestRegressor(11), both, False),
    (ensemble.GradientBoostingClassifier(n_estimators=10), two, True), (ensemble.GradientBoostingClassifier(n_estimators=11), three, True),
    (ensemble.ExtraTreesClassifier(10), three, True), (ensemble.AdaBoostClassifier(n_estimators=5), three, True),
    (ensemble.BaggingClassifier(n_estimators=3), three, True), (tree.DecisionTreeClassifier(), three, True),
    (tree.DecisionTreeRegressor(), one, False), (linear_model.LogisticRegression(), two, True),
    (linear_model.LogisticRegression(C=2), three, True), (linear_model.LogisticRegression(C=3), words, True),
    (linear_model.LinearRegression(), one, False), (linear_model.LinearRegression(positive=True), both, False),
    (linear_model.RidgeClassifier(), three, False), (linear_model.SGDClassifier(), three, True),
    (svm.SVC(probability=True), three, True), (svm.SVC(kernel="poly"), two, True), (svm.NuSVC(kernel="sigmoid", nu=0.1), two, True),
    (svm.SVC(kernel="linear"), three, True), (svm.SVR(), one, False), (svm.OneClassSVM(), None, False),
    (neural_network.MLPClassifier((8,), max_iter=20), three, True), (naive_bayes.GaussianNB(), three, True),
    (neighbors.KNeighborsClassifier(3), three, True), (neighbors.KNeighborsRegressor(3), one, False),
    (preprocessing.StandardScaler(), None, False), (preprocessing.MinMaxScaler(), None, False),
    (preprocessing.Normalizer(), None, False), (preprocessing.Normalizer("l1"), None, False),
    (preprocessing.Normalizer("max"), None, False), (preprocessing.Binarizer(), None, False),
    (preprocessing.RobustScaler(), None, False), (preprocessing.PolynomialFeatures(2), None, False),
    (preprocessing.PowerTransformer(), None, False), (decomposition.PCA(3), None, False), (impute.SimpleImputer(), None, False),
    (cluster.KMeans(3, n_init=1), None, False), (discriminant_analysis.LinearDiscriminantAnalysis(), three, True),
    (pipeline.make_pipeline(preprocessing.StandardScaler(), decomposition.PCA(3), linear_model.LogisticRegression()), three, False),
    (multiclass.OneVsRestClassifier(linear_model.LogisticRegression()), three, True),
    (gaussian_process.GaussianProcessRegressor(), one, False),
]:
    todo[f"{m} {len(todo)}".replace("\n", "")] = lambda m=m, y=y, plain=plain: of_sklearn(m, y, plain)

rows = np.concatenate([X[:50], g.standard_normal((50, 6)).astype("f4")])
np.save(moth.folder + "/rows.npy", rows)
want, cases = {}, []
for name, make in todo.items():
    path = f"{moth.folder}/{len(cases)}.onnx"
    onnx.save(make(), path)
    session = ort.InferenceSession(path)
    cases.append({"name": name, "file": path, "input": session.get_inputs()[0].name})
    want[name] = session.run(None, {cases[-1]["input"]: rows})
json.dump(cases, open(moth.folder + "/cases.json", "w"))
said = moth.result("sklearn", moth.folder)
results = 0
for name, values in want.items():
    got = said[name]
    if "error" in got:
        moth.expect(False, f"{name}: {got['error']}")
        continue
    for mine, theirs in zip(got["results"], values, strict=True):
        results += 1
        if isinstance(theirs, list):
            same = all(abs(m[str(k)] - v) < 1e-4 for m, t in zip(mine, theirs, strict=True) for k, v in t.items())
        elif theirs.dtype.kind in "OU":
            same = mine == theirs.reshape(-1).tolist()
        else:
            same = np.allclose(np.array(mine, "f8").reshape(-1), theirs.reshape(-1), 1e-3, 1e-4)
        moth.expect(same, f"{name}: {str(mine)[:100]}, not {str(theirs)[:100]}")
moth.end(f"{len(cases)} models, {results} results of {len(rows)} rows")
