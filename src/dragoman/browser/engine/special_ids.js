/* The ids of the special tokens that stand for no text; text_vocabulary.js has </s> and <unk>. */

export const PAD_ID = 0;
export const BOS_ID = 1;
