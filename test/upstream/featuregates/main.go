// Program featuregates prints the feature gates of kube-apiserver: name, default, stage, and "locked" if the default cannot be changed.
package main

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/util/version"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"

	_ "k8s.io/kubernetes/pkg/features" // registers the gates
)

// release is the version whose defaults are printed.
var release = version.MustParse("1.37")

func main() {
	gates := utilfeature.DefaultMutableFeatureGate.GetAllVersioned()
	for _, name := range slices.Sorted(maps.Keys(gates)) {
		var current *featuregate.FeatureSpec
		for i, spec := range gates[name] {
			if !spec.Version.GreaterThan(release) {
				current = &gates[name][i]
			}
		}
		if current == nil {
			continue // introduced later
		}
		stage := string(current.PreRelease)
		if stage == "" {
			stage = "GA"
		}
		line := fmt.Sprintf("%s %v %s", name, current.Default, stage)
		if current.LockToDefault {
			line += " locked"
		}
		fmt.Println(line)
	}
}
