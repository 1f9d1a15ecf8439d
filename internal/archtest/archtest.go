// Package archtest holds tests of the tree itself: who may import whom, that every package says what it is for, which
// modules end up in the program, and that the documents name code that exists.
package archtest
