package plugins

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Factory makes a plugin from its arguments in a profile; arguments are nil if there are none.
type Factory struct {
	Name string
	// Weight is the plugin's default weight. 0 means 1.
	Weight int64
	Make   func(arguments []byte) (Plugin, error)
	// Optional plugins are disabled by default.
	Optional bool
}

// Registry lists all plugins in their default order. To add a plugin, add a line.
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

// WithoutArgs is the Make function of a plugin without arguments.
func WithoutArgs(r Plugin) func([]byte) (Plugin, error) {
	return func([]byte) (Plugin, error) { return r, nil }
}

// WithArgs is the Make function of a plugin with arguments of upstream's type T. The configuration is validated before, so the plugin does
// not validate them again.
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
