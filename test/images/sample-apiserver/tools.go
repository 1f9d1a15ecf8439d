//go:build tools

// Package sampleapiserver pins the aggregated API server that the conformance suite installs. It depends on old libraries
// and is therefore a module of its own.
package sampleapiserver

import _ "k8s.io/sample-apiserver"
