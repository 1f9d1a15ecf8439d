package alignment

import (
	"errors"
	"fmt"
	"strconv"

	"skiff/internal/kubelet/topology"
)

// The policies of the topology manager.
const (
	None           = "none"
	BestEffort     = "best-effort"
	Restricted     = "restricted"
	SingleNUMANode = "single-numa-node"
)

// The scopes in which resources are aligned.
const (
	ContainerScope = "container"
	PodScope       = "pod"
)

// defaultMaxNUMANodes bounds the number of NUMA nodes, because hints are made for all of their subsets.
const defaultMaxNUMANodes = 8

// Options are the options of a policy.
type Options struct {
	PreferClosestNUMANodes bool
	MaxNUMANodes           int
}

// ParseOptions parses the policy options of a KubeletConfiguration.
func ParseOptions(options map[string]string) (Options, error) {
	o := Options{MaxNUMANodes: defaultMaxNUMANodes}
	for name, value := range options {
		switch name {
		case "prefer-closest-numa-nodes":
			var err error
			if o.PreferClosestNUMANodes, err = strconv.ParseBool(value); err != nil {
				return o, fmt.Errorf("bad value for option %q: %w", name, err)
			}
		case "max-allowable-numa-nodes":
			number, err := strconv.Atoi(value)
			if err != nil {
				return o, fmt.Errorf("unable to convert policy option to integer %q: %w", name, err)
			}
			if number < defaultMaxNUMANodes {
				return o, fmt.Errorf("the minimum value of %q should not be less than %v", name, defaultMaxNUMANodes)
			}
			o.MaxNUMANodes = number
		default:
			return o, fmt.Errorf("unknown Topology Manager Policy option: %q", name)
		}
	}
	return o, nil
}

// Policy decides which hint is the best and whether a pod is admitted with it.
type Policy struct {
	Name    string
	Options Options
	// all are the NUMA nodes of the host, distances those between them.
	all       Mask
	distances map[int][]uint64
}

// NewPolicy makes the policy for a host.
func NewPolicy(name string, o Options, nodes []topology.NUMANode) (*Policy, error) {
	p := &Policy{Name: name, Options: o, distances: map[int][]uint64{}}
	switch name {
	case None:
		return p, nil
	case BestEffort, Restricted, SingleNUMANode:
	default:
		return nil, fmt.Errorf("unknown policy: %q", name)
	}
	for _, node := range nodes {
		if node.ID >= maxNUMANodes {
			return nil, fmt.Errorf("unsupported on machines with a NUMA Node %d: the highest is %d", node.ID, maxNUMANodes-1)
		}
		if o.PreferClosestNUMANodes && node.Distances == nil {
			return nil, errors.New("cannot discover NUMA topology: error getting NUMA distances")
		}
		p.all |= NewMask(node.ID)
		p.distances[node.ID] = node.Distances
	}
	if len(nodes) > o.MaxNUMANodes {
		return nil, fmt.Errorf("unsupported on machines with more than %v NUMA Nodes", o.MaxNUMANodes)
	}
	return p, nil
}
