package plugins

// The names of the plugins, as upstream has them.
const (
	SchedulingGatesName      = "SchedulingGates"
	NodeNameName             = "NodeName"
	NodeUnschedulableName    = "NodeUnschedulable"
	TaintTolerationName      = "TaintToleration"
	NodeAffinityName         = "NodeAffinity"
	NodePortsName            = "NodePorts"
	NodeResourcesFitName     = "NodeResourcesFit"
	VolumeRestrictionsName   = "VolumeRestrictions"
	NodeVolumeLimitsName     = "NodeVolumeLimits"
	VolumeBindingName        = "VolumeBinding"
	VolumeZoneName           = "VolumeZone"
	PodTopologySpreadName    = "PodTopologySpread"
	InterPodAffinityName     = "InterPodAffinity"
	DynamicResourcesName     = "DynamicResources"
	DefaultPreemptionName    = "DefaultPreemption"
	BalancedAllocationName   = "NodeResourcesBalancedAllocation"
	ImageLocalityName        = "ImageLocality"
	NodeDeclaredFeaturesName = "NodeDeclaredFeatures"
)
