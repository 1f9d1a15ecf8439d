package snapshot

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// image is a container image that some nodes have.
type image struct {
	Size  int64
	Nodes int
	// version grows whenever the set of nodes with the image changes, because that changes its score on all of them.
	version uint64
}

// NormalizedImageName adds the tag latest if the name has no tag.
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
			// The first node that reports an image determines its size; update it only if no other node has the image.
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

// ImageVersion returns the version of an image, 0 if no node has it.
func (s *Snapshot) ImageVersion(name string) uint64 {
	if i := s.Images[name]; i != nil {
		return i.version
	}
	return 0
}
