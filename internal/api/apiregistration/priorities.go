package apiregistration

import "k8s.io/apimachinery/pkg/runtime/schema"

// Priority decides the place of a group version in discovery: groups are ordered by the highest Group of their versions, the versions of a
// group by Version.
type Priority struct{ Group, Version int32 }

// builtIn are the priorities of the group versions that get a local APIService, as upstream has them.
var builtIn = map[schema.GroupVersion]Priority{
	{Group: "", Version: "v1"}:                             {18000, 1},
	{Group: "apps", Version: "v1"}:                         {17800, 15},
	{Group: "events.k8s.io", Version: "v1"}:                {17750, 15},
	{Group: "authentication.k8s.io", Version: "v1"}:        {17700, 15},
	{Group: "authorization.k8s.io", Version: "v1"}:         {17600, 15},
	{Group: "autoscaling", Version: "v1"}:                  {17500, 15},
	{Group: "autoscaling", Version: "v2"}:                  {17500, 30},
	{Group: "batch", Version: "v1"}:                        {17400, 15},
	{Group: "certificates.k8s.io", Version: "v1"}:          {17300, 15},
	{Group: "networking.k8s.io", Version: "v1"}:            {17200, 15},
	{Group: "policy", Version: "v1"}:                       {17100, 15},
	{Group: "rbac.authorization.k8s.io", Version: "v1"}:    {17000, 15},
	{Group: "storage.k8s.io", Version: "v1"}:               {16800, 15},
	{Group: "apiextensions.k8s.io", Version: "v1"}:         {16700, 15},
	{Group: "admissionregistration.k8s.io", Version: "v1"}: {16700, 15},
	{Group: "scheduling.k8s.io", Version: "v1"}:            {16600, 15},
	{Group: "coordination.k8s.io", Version: "v1"}:          {16500, 15},
	{Group: "node.k8s.io", Version: "v1"}:                  {16300, 15},
	{Group: "discovery.k8s.io", Version: "v1"}:             {16200, 15},
	{Group: "resource.k8s.io", Version: "v1"}:              {16200, 21},
	{Group: "flowcontrol.apiserver.k8s.io", Version: "v1"}: {16100, 21},
	{Group: "storagemigration.k8s.io", Version: "v1"}:      {15800, 15},
}

var (
	// CustomPriority is the priority of the group versions of custom resources.
	CustomPriority = Priority{Group: 1000, Version: 100}
	// ownGroup lists apiregistration.k8s.io before all others. It has no APIService.
	ownGroup = Priority{Group: 20001, Version: 1}
	// metricsGroup is the priority that a metrics-server's APIService has. The built-in metrics.k8s.io has no APIService, so that a
	// metrics-server can bring its own.
	metricsGroup = Priority{Group: 100, Version: 100}
)

// PriorityOf is the priority in discovery of a group version that this server serves.
func PriorityOf(gv schema.GroupVersion) Priority {
	if p, ok := builtIn[gv]; ok {
		return p
	}
	switch gv.Group {
	case "apiregistration.k8s.io":
		return ownGroup
	case "metrics.k8s.io":
		return metricsGroup
	}
	return CustomPriority
}

// RegisteredPriority is the priority of the local APIService of a built-in group version. ok is false if it gets none.
func RegisteredPriority(gv schema.GroupVersion) (p Priority, ok bool) {
	p, ok = builtIn[gv]
	return p, ok
}
