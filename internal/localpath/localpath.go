// Package localpath is the agreement between the provisioner of local directories and the kubelets that create and remove them.
//
// A kubelet announces by an annotation of its Node that it removes directories, and below which directory they are. The controller writes the
// names of the directories to remove into a second annotation, and the kubelet those of them that are removed into a third. Each annotation has
// one writer, so nothing has to be locked, and a node needs no permission besides that to change its own Node object.
package localpath

import "strings"

const (
	// Provisioner is the name of the provisioner in storage classes and volumes.
	Provisioner = "skiff.io/local-path"
	// Finalizer keeps a volume until its node has removed the directory.
	Finalizer = "skiff.io/local-path"
	// DirAnnotation of a Node is the parent of the directories of its volumes.
	DirAnnotation = "skiff.io/local-path-dir"
	// RemovalsAnnotation of a Node has the names of the directories that its kubelet has to remove, RemovedAnnotation those that it has removed.
	RemovalsAnnotation, RemovedAnnotation = "skiff.io/local-path-removals", "skiff.io/local-path-removed"
	// MaxRemovals bounds the names in an annotation. The others follow when these are removed.
	MaxRemovals = 64
)

// ParseNames returns the names in an annotation, at most MaxRemovals.
func ParseNames(text string) []string {
	if text == "" {
		return nil
	}
	names := strings.Split(text, ",")
	return names[:min(len(names), MaxRemovals)]
}

// FormatNames is the annotation with the names, which have no commas.
func FormatNames(names []string) string {
	return strings.Join(names[:min(len(names), MaxRemovals)], ",")
}

// IsVolumeDir reports whether a name is that of a volume's directory: a single path element that begins as the names of provisioned volumes do.
func IsVolumeDir(name string) bool {
	return strings.HasPrefix(name, "pvc-") && !strings.ContainsAny(name, "/\x00")
}
