// Package version says which skiff this is, and which Kubernetes it is equal to.
package version

import (
	"fmt"
	"runtime"

	apimachineryversion "k8s.io/apimachinery/pkg/version"
)

// Kubernetes is the release whose behaviour skiff has.
const Kubernetes = "v1.37.1"

// Set by the linker.
var (
	skiff  = "0.1.0"
	commit = "unknown"
	date   = "1970-01-01T00:00:00Z"
)

// Skiff is skiff's own version.
func Skiff() string { return skiff }

// Info is what /version reports.
func Info() apimachineryversion.Info {
	return apimachineryversion.Info{
		Major:        "1",
		Minor:        "37",
		GitVersion:   Kubernetes + "+skiff." + skiff,
		GitCommit:    commit,
		GitTreeState: "clean",
		BuildDate:    date,
		GoVersion:    runtime.Version(),
		Compiler:     runtime.Compiler,
		Platform:     fmt.Sprintf("%s/%s", runtime.GOOS, runtime.GOARCH),
	}
}
