package snapshot

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// image is a container image some nodes hold.
type image struct {
	Size  int64
	Nodes int
	// version grows whenever the set of nodes that hold the image changes: its worth on every one of them changes with it.
	version uint64
}

// NormalizedImageName adds the tag that is meant when none is named.
func NormalizedImageName(name string) string {
	if strings.LastIndex(name, ":") <= strings.LastIndex(name, "/") {
		return name + ":latest"
	}
	return name
}

func (s *Snapshot) setImages(n *NodeInfo, images []corev1.ContainerImage) {
	s.ImagesVersion++
	names := map[string]int64{}
	for _, i := range images {
		for _, name := range i.Names {
			if _, twice := names[name]; !twice {
				names[name] = i.SizeBytes
			}
		}
	}
	for name := range n.Images {
		if _, kept := names[name]; kept {
			continue
		}
		held := s.Images[name]
		held.Nodes--
		held.version++
		if held.Nodes == 0 {
			delete(s.Images, name)
		}
	}
	for name, size := range names {
		held := s.Images[name]
		if before, had := n.Images[name]; had {
			// Only where nobody else has told another size, the new one counts.
			if before != size && held.Nodes == 1 {
				held.Size = size
				held.version++
			}
			continue
		}
		if held == nil {
			held = &image{Size: size, version: s.nextVersion()}
			s.Images[name] = held
		}
		held.Nodes++
		held.version++
	}
	n.Images = names
}

func (s *Snapshot) ImageVersion(name string) uint64 {
	if i := s.Images[name]; i != nil {
		return i.version
	}
	return 0
}
