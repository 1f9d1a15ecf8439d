package plugins

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Factory makes a rule from a profile's arguments; arguments are nil when the file has none for it.
type Factory struct {
	Name string
	// Weight is the rule's say in scores unless a profile tells otherwise. 0 means 1.
	Weight int64
	Make   func(arguments []byte) (Plugin, error)
	// Optional rules take part only if a profile enables them.
	Optional bool
}

// Registry are all rules there are, in the order in which they are asked. A rule of your own is one more line.
var Registry = []Factory{
	{Name: SchedulingGatesName, Make: WithoutArgs(schedulingGates{})},
	{Name: NodeNameName, Make: WithoutArgs(nodeName{})},
	{Name: NodeUnschedulableName, Make: WithoutArgs(nodeUnschedulable{})},
	{Name: TaintTolerationName, Weight: 3, Make: WithoutArgs(taintToleration{})},
	{Name: NodeAffinityName, Weight: 2, Make: WithArgs(newNodeAffinity)},
	{Name: NodePortsName, Make: WithoutArgs(nodePorts{})},
	{Name: NodeResourcesFitName, Make: WithArgs(newNodeResourcesFit)},
	{Name: VolumeRestrictionsName, Make: WithoutArgs(volumeRestrictions{})},
	{Name: NodeVolumeLimitsName, Make: WithoutArgs(nodeVolumeLimits{})},
	{Name: VolumeBindingName, Make: WithArgs(newVolumeBinding)},
	{Name: VolumeZoneName, Make: WithoutArgs(volumeZone{})},
	{Name: PodTopologySpreadName, Weight: 2, Make: WithArgs(newPodTopologySpread)},
	{Name: InterPodAffinityName, Weight: 2, Make: WithArgs(newInterPodAffinity)},
	{Name: DynamicResourcesName, Weight: 2, Make: WithArgs(newDynamicResources)},
	{Name: DefaultPreemptionName, Make: WithArgs(NewDefaultPreemption)},
	{Name: BalancedAllocationName, Make: WithArgs(newBalancedAllocation)},
	{Name: ImageLocalityName, Make: WithoutArgs(imageLocality{})},
	{Name: NodeDeclaredFeaturesName, Make: WithoutArgs(nodeDeclaredFeatures{})},
}

func WithoutArgs(r Plugin) func([]byte) (Plugin, error) {
	return func([]byte) (Plugin, error) { return r, nil }
}

// WithArgs reads a rule's arguments into upstream's type for them. A profile is made of a configuration that was found valid, so the rule need not look
// at them again.
func WithArgs[T any](newPlugin func(*T) Plugin) func([]byte) (Plugin, error) {
	return func(data []byte) (Plugin, error) {
		arguments := new(T)
		if len(data) > 0 {
			decoder := json.NewDecoder(bytes.NewReader(data))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(arguments); err != nil {
				return nil, fmt.Errorf("read arguments: %w", err)
			}
		}
		return newPlugin(arguments), nil
	}
}
