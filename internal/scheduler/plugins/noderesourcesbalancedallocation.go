package plugins

import (
	"math"
	"slices"

	configv1 "k8s.io/kube-scheduler/config/v1"

	"skiff/internal/scheduler/snapshot"
)

// balancedAllocation prefers nodes whose resources are used in balance with the pod added.
type balancedAllocation struct {
	resources []configv1.ResourceSpec
}

func newBalancedAllocation(args *configv1.NodeResourcesBalancedAllocationArgs) Plugin {
	return &balancedAllocation{resources: withDefaultResources(args.Resources)}
}

func (*balancedAllocation) Name() string { return BalancedAllocationName }

func (r *balancedAllocation) Score(s *snapshot.Snapshot, p *snapshot.PodInfo) Scorer {
	resources := scoredResources(s, p, r.resources, false)
	if !slices.ContainsFunc(resources, func(x scoredResource) bool { return x.requested > 0 }) {
		return Scorer{} // pods without requests would all go to the best balanced node
	}
	return Scorer{Volatile: countsDevices(resources), Score: func(node int32) int64 {
		with, without := balance(s, resources, node, true), balance(s, resources, node, false)
		return MaxScore/2 + (MaxScore/2+with-without)/2
	}}
}

// balance returns MaxScore less the standard deviation of the used fractions of a node's resources.
func balance(s *snapshot.Snapshot, resources []scoredResource, node int32, withPod bool) int64 {
	var buffer [8]float64
	shares, total := buffer[:0], 0.0
	for i := range resources {
		x := &resources[i]
		capacity, used := x.usage(s, node)
		if capacity == 0 {
			continue
		}
		if withPod {
			used += x.requested
		}
		share := min(float64(used)/float64(capacity), 1)
		shares = append(shares, share)
		total += share
	}
	deviation := 0.0
	if n := len(shares); n == 2 {
		deviation = math.Abs((shares[0] - shares[1]) / 2)
	} else if n > 2 {
		mean, sum := total/float64(n), 0.0
		for _, share := range shares {
			sum += (share - mean) * (share - mean)
		}
		deviation = math.Sqrt(sum / float64(n))
	}
	return int64((1 - deviation) * MaxScore)
}
