package plugins

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/snapshot"
)

// The image sizes between which the score grows from 0 to MaxScore.
const (
	minImageThreshold int64 = 23 * 1024 * 1024
	maxImageThreshold int64 = 1000 * 1024 * 1024
)

// imageLocality prefers nodes that have the pod's images. Larger images and images on more nodes score higher.
type imageLocality struct{}

func (imageLocality) Name() string { return ImageLocalityName }

// imagesOfPod returns the images a pod uses, one entry for each use.
func imagesOfPod(pod *corev1.Pod) (names []string) {
	for i := range pod.Spec.InitContainers {
		names = append(names, snapshot.NormalizedImageName(pod.Spec.InitContainers[i].Image))
	}
	for i := range pod.Spec.Containers {
		names = append(names, snapshot.NormalizedImageName(pod.Spec.Containers[i].Image))
	}
	for i := range pod.Spec.Volumes {
		if v := pod.Spec.Volumes[i].Image; v != nil {
			names = append(names, snapshot.NormalizedImageName(v.Reference))
		}
	}
	return names
}

func (imageLocality) Score(s *snapshot.Snapshot, p *snapshot.PodInfo) Scorer {
	names := imagesOfPod(p.Pod)
	if len(names) == 0 {
		return Scorer{}
	}
	maxSize := maxImageThreshold * int64(len(names))
	// Usually no node has any of them; this is checked once, not for each node.
	var version uint64
	known := false
	return Scorer{Score: func(node int32) int64 {
		if version != s.ImagesVersion {
			version = s.ImagesVersion
			known = slices.ContainsFunc(names, func(name string) bool { return s.Images[name] != nil })
		}
		if !known {
			return 0
		}
		nodeImages := s.NodeInfos[node].Images
		var sum int64
		for _, name := range names {
			if _, has := nodeImages[name]; has {
				i := s.Images[name]
				sum += int64(float64(i.Size) * (float64(i.Nodes) / float64(s.NodeCount)))
			}
		}
		sum = min(max(sum, minImageThreshold), maxSize)
		return MaxScore * (sum - minImageThreshold) / (maxSize - minImageThreshold)
	}}
}

// ImageVersions detects that the image score of a table's pod has changed on nodes that are not in Snapshot.Changes: it depends on how many
// nodes have an image.
type ImageVersions struct {
	names    []string
	versions []uint64
	nodes    int
}

func NewImageVersions(s *snapshot.Snapshot, p *snapshot.PodInfo) ImageVersions {
	x := ImageVersions{names: imagesOfPod(p.Pod)}
	x.versions = make([]uint64, len(x.names))
	x.Refresh(s)
	return x
}

func (x *ImageVersions) Refresh(s *snapshot.Snapshot) {
	x.nodes = s.NodeCount
	for i, name := range x.names {
		x.versions[i] = s.ImageVersion(name)
	}
}

func (x *ImageVersions) Current(s *snapshot.Snapshot) bool {
	held := false
	for i, name := range x.names {
		version := s.ImageVersion(name)
		if version != x.versions[i] {
			return false
		}
		held = held || version != 0
	}
	return !held || x.nodes == s.NodeCount
}
