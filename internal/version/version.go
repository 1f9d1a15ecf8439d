// Package version holds skiff's version and the Kubernetes version whose API it serves.
package version

import (
	"fmt"
	"runtime"
	"strings"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
)

// Kubernetes is the Kubernetes release that skiff conforms to.
const Kubernetes = "v1.37.1"

// GitSeparator is between the version of Kubernetes and skiff's own in the gitVersion of /version and in the kubeletVersion of nodes.
const GitSeparator = "+skiff."

// Set by the linker: skiff is the output of `git describe --tags`, with or without the leading v.
var (
	skiff  = "v0.1.0"
	commit = "unknown"
	date   = "1970-01-01T00:00:00Z"
)

// Skiff is skiff's own version, such as v0.1.0.
func Skiff() string { return "v" + strings.TrimPrefix(skiff, "v") }

// String is the version as `skiff --version` shows it.
func String() string {
	return fmt.Sprintf("%s (Kubernetes %s, commit %s, %s, %s/%s)", Skiff(), Kubernetes, commit, runtime.Version(), runtime.GOOS, runtime.GOARCH)
}

// Info is the response of /version.
func Info() apimachineryversion.Info {
	state := "clean"
	if strings.HasSuffix(skiff, "-dirty") {
		state = "dirty"
	}
	return apimachineryversion.Info{
		Major:        "1",
		Minor:        "37",
		GitVersion:   Kubernetes + GitSeparator + strings.TrimPrefix(skiff, "v"),
		GitCommit:    commit,
		GitTreeState: state,
		BuildDate:    date,
		GoVersion:    runtime.Version(),
		Compiler:     runtime.Compiler,
		Platform:     fmt.Sprintf("%s/%s", runtime.GOOS, runtime.GOARCH),
	}
}
