// What the tests of real clients share: where the server is, and the packages that npm installed.
import { createRequire } from 'node:module';

export const url = process.env.QUERN_URL;
export const key = process.env.QUERN_KEY;
export const load = createRequire(`${process.env.QUERN_NPM}/`);

// The bundled model answers this in five tokens, the same each time.
export const question = 'What color is a lemon?';
export const answer = 'A lemon is yellow.';

export const schema = {
  type: 'object',
  properties: { color: { type: 'string', enum: ['yellow', 'blue'] } },
  required: ['color'],
  additionalProperties: false,
};

// The error that a promise is rejected with.
export async function failure(promise) {
  try {
    await promise;
  } catch (error) {
    return error;
  }
  throw new Error('it did not fail');
}
