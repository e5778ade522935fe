/** One output. Scores are log-probabilities: higher is better. */
export interface Prediction {
  text: string;
  /** Under the search's length rule. */
  score: number;
  /** Of the whole sequence. */
  log_prob: number;
  tokens: string[];
  /** Of each token, and of </s> where the output ended with it. */
  log_probs: number[];
  finish_reason: "eos" | "length" | "no_valid_token" | "empty_source";
  source_tokens: string[];
  /** The source was too long, and only its beginning was read. */
  source_truncated: boolean;
  /** The next best. */
  alternatives: Prediction[];
  /** Target tokens with </s> × source tokens, if it was asked for. */
  attention: number[][] | null;
  /** What the beam kept and dropped at each step, if it was asked for. */
  trace: object[] | null;
  ids: number[];
}

/** Options of a call; they override those of the model's config. */
export interface PredictOptions {
  search?: "beam" | "greedy";
  /** Hypotheses kept at each step; 1 is greedy search. */
  beam?: number;
  /** How many outputs to return, at most `beam`. */
  nbest?: number;
  length_rule?: "none" | "mean" | "power" | "gnmt";
  length_penalty?: number | null;
  early_stopping?: boolean | "never";
  patience?: number;
  finished_policy?: "collect" | "shrink";
  coverage_penalty?: number;
  max_new_tokens?: number | null;
  max_length_ratio?: number;
  max_length_extra?: number;
  min_new_tokens?: number;
  min_length_ratio?: number;
  /** The text that the output begins with. */
  prefix?: string;
  forbid_phrases?: string[];
  no_repeat_ngram_size?: number;
  repetition_penalty?: number;
  allow_unk?: boolean;
  attention?: boolean;
  trace?: boolean;
  /** Of a model that knows several languages. */
  source_lang?: string;
  target_lang?: string;
  /** Cancels the prediction. */
  signal?: AbortSignal;
}

export interface Model {
  predict(text: string, options?: PredictOptions): Promise<Prediction>;
  predict(texts: string[], options?: PredictOptions): Promise<Prediction[]>;
  precision: "float32" | "float16" | "int8";
  parameters: number;
}

export interface LoadOptions {
  /** Is called with the fraction that is done. */
  onProgress?: (fraction: number) => void;
  signal?: AbortSignal;
}

/** The model in the folder at `url`: by default, the folder of this module. In Node `url` may be a path. */
export function load(url?: string | URL, options?: LoadOptions): Promise<Model>;
