// Package upgrade decides which versions of skiff may follow one another on the same data, and which may run in one cluster at the same time. It
// only computes, apart from the record in a data directory (Record); package cluster records the versions of the servers, and package system
// asks before anything is changed.
//
// Versions are compared by their minor versions, skiff's own and those of the Kubernetes they conform to, whichever is further apart: an upgrade goes
// through every minor version, servers and nodes may be one apart, and nothing that a newer minor version has written is given to an older one.
package upgrade

import (
	"fmt"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"

	"skiff/internal/version"
)

// Release is a version of skiff, and the version of Kubernetes that it conforms to.
type Release struct {
	// Skiff is empty for another implementation of Kubernetes.
	Skiff      string `json:"skiff,omitempty"`
	Kubernetes string `json:"kubernetes"`
}

// This is the release of this program.
func This() Release { return Release{Skiff: version.Skiff(), Kubernetes: version.Kubernetes} }

// ParseGitVersion returns the release of a gitVersion of /version, or of a node's kubeletVersion.
func ParseGitVersion(text string) (Release, error) {
	var r Release
	kubernetes, skiff, isSkiff := strings.Cut(text, version.GitSeparator)
	if r.Kubernetes = kubernetes; isSkiff {
		r.Skiff = "v" + skiff
	}
	return r, r.validate()
}

// ParseVersion returns the release of what `skiff --version` shows, which snapshots have.
func ParseVersion(text string) (Release, error) {
	skiff, rest, _ := strings.Cut(text, " (Kubernetes ")
	kubernetes, _, _ := strings.Cut(rest, ",")
	r := Release{Skiff: skiff, Kubernetes: kubernetes}
	if r.validate() != nil || skiff == "" {
		return r, fmt.Errorf("%q is not a version of skiff", text)
	}
	return r, nil
}

// validate checks that both versions can be compared.
func (r Release) validate() error {
	for _, text := range []string{r.Skiff, r.Kubernetes} {
		if text == "" && r.Skiff == "" && r.Kubernetes != "" {
			continue
		}
		if _, err := utilversion.ParseGeneric(text); err != nil {
			return fmt.Errorf("version %q: %w", text, err)
		}
	}
	return nil
}

func (r Release) String() string {
	if r.Skiff == "" {
		return "Kubernetes " + r.Kubernetes
	}
	return r.Skiff + " (Kubernetes " + r.Kubernetes + ")"
}

// Minor is the minor version, such as v0.1.
func (r Release) Minor() string { return minor(r.name(), 0) }

// next is the minor version that follows.
func (r Release) next() string { return minor(r.name(), 1) }

// name is the version that users know the release by.
func (r Release) name() string {
	if r.Skiff == "" {
		return r.Kubernetes
	}
	return r.Skiff
}

// minor is the minor version of a version, or one of the following.
func minor(text string, plus uint) string {
	v, err := utilversion.ParseGeneric(text)
	if err != nil {
		return text
	}
	return fmt.Sprintf("v%d.%d", v.Major(), v.Minor()+plus)
}

// far is how many minor versions those of different major versions are apart.
const far = 1000

// Ahead is how many minor versions a release is newer than another; negative: older. Of skiff's versions and those of Kubernetes, the ones that are
// further apart count.
func (r Release) Ahead(of Release) int {
	ahead := minorsAhead(r.Kubernetes, of.Kubernetes)
	if r.Skiff == "" || of.Skiff == "" {
		return ahead
	}
	if own := minorsAhead(r.Skiff, of.Skiff); max(own, -own) >= max(ahead, -ahead) {
		return own
	}
	return ahead
}

func minorsAhead(a, b string) int {
	v, err := utilversion.ParseGeneric(a)
	if err != nil {
		return 0 // validate has refused it
	}
	w, err := utilversion.ParseGeneric(b)
	switch {
	case err != nil:
		return 0
	case v.Major() != w.Major():
		return far * (int(v.Major()) - int(w.Major()))
	}
	return int(v.Minor()) - int(w.Minor())
}
