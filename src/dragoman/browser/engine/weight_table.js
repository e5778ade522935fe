/* The tensors of a model by name, as scopes: weights.at("encoder").linear("input_proj"). */

import { Linear, Matrix } from "./tensors.js";

/** Tensors whose names begin with `prefix`; `multiply` computes their products. */
export class WeightTable {
  constructor(tensors, multiply, prefix = "") {
    Object.assign(this, { tensors, multiply, prefix });
  }

  at(name) {
    return new WeightTable(this.tensors, this.multiply, `${this.prefix}${name}.`);
  }

  has(name) {
    return this.tensors.has(this.prefix + name);
  }

  /** Whether there is a tensor below this name. */
  hasBelow(name) {
    const start = `${this.prefix}${name}.`;
    return [...this.tensors.keys()].some((key) => key.startsWith(start));
  }

  tensor(name) {
    const found = this.tensors.get(this.prefix + name);
    if (found === undefined) throw new Error(`the model has no weight ${this.prefix}${name}; export it again`);
    return found;
  }

  /** The numbers of a tensor in float32, in one row. */
  numbers(name) {
    const { matrix, values } = this.tensor(name);
    return matrix === null ? values : matrix.toFloat32();
  }

  shape(name) {
    return this.tensor(name).shape;
  }

  matrix(name) {
    const { matrix, values, shape } = this.tensor(name);
    return matrix ?? new Matrix(shape[0], shape[1], values);
  }

  /** y = W x + b of `name`.weight and, if there is one, `name`.bias. */
  linear(name, weight = "weight", bias = "bias") {
    const scope = this.at(name);
    return new Linear(scope.matrix(weight), scope.has(bias) ? scope.numbers(bias) : null, this.multiply);
  }
}
