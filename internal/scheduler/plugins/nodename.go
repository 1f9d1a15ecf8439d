package plugins

import (
	"skiff/internal/scheduler/snapshot"
)

// nodeName filters all nodes but spec.nodeName, if it is set.
type nodeName struct{}

func (nodeName) Name() string { return NodeNameName }

var nodeNameMismatch = Refuse(NodeNameName, true, "node(s) didn't match the requested node name")

func (nodeName) Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal) {
	name := p.Pod.Spec.NodeName
	if name == "" {
		return Filter{}, nil
	}
	return Filter{Check: func(node int32) *Refusal {
		if s.NodeInfos[node].Name != name {
			return nodeNameMismatch
		}
		return nil
	}}, nil
}

func (nodeName) Hints() []QueueingHint { return []QueueingHint{{Resource: NodeResource, Action: Add}} }
