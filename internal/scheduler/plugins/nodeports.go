package plugins

import (
	corev1 "k8s.io/api/core/v1"

	"skiff/internal/scheduler/snapshot"
)

// nodePorts filters nodes where a host port of the pod is in use.
type nodePorts struct{}

func (nodePorts) Name() string { return NodePortsName }

var portsTaken = Refuse(NodePortsName, false, "node(s) didn't have free ports for the requested pod ports")

func (nodePorts) Filter(s *snapshot.Snapshot, p *snapshot.PodInfo) (Filter, *Refusal) {
	if len(p.HostPorts) == 0 {
		return Filter{}, nil
	}
	wanted := p.HostPorts
	return Filter{Check: func(node int32) *Refusal {
		if portsConflict(wanted, s.NodeInfos[node].HostPorts) {
			return portsTaken
		}
		return nil
	}}, nil
}

func portsConflict(wanted, used []snapshot.HostPort) bool {
	for _, w := range wanted {
		for _, u := range used {
			if w.Conflicts(u) {
				return true
			}
		}
	}
	return false
}

func (nodePorts) Hints() []QueueingHint {
	return []QueueingHint{
		{Resource: AssignedPod, Action: Delete, Helps: func(_ *snapshot.Snapshot, pod *corev1.Pod, old, _ any) bool {
			return occupiesNode(asPod(old)) && portsConflict(snapshot.HostPortsOf(pod), snapshot.HostPortsOf(asPod(old)))
		}},
		{Resource: NodeResource, Action: Add},
	}
}
