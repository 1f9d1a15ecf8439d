//go:build tools

// Package sampleapiserver pins the aggregated API server that the conformance suite installs: an old one, on old libraries, and therefore in a
// module of its own.
package sampleapiserver

import _ "k8s.io/sample-apiserver"
