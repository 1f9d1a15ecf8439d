// Package quickstart has tests of the first steps of a new user: what README.md says under "Start", as it stands there.
package quickstart
