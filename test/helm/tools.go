//go:build tools

// Package helm pins helm, which test/node runs against a cluster as a user does. build makes the program from its module.
package helm

import _ "helm.sh/helm/v4/cmd/helm"
