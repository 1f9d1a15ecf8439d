// Package flowcontrol holds the rows of flowcontrol.apiserver.k8s.io: flow schemas, which sort requests into flows, and
// priority levels, which give flows their share of the server. It also has the objects that a server makes for itself
// when it starts, without which no request could be placed.
package flowcontrol

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"skiff/internal/kind"
)

// Kinds are the rows of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{FlowSchema, PriorityLevelConfiguration}
}

// Configuration is a set of priority levels and the flow schemas that lead to them.
type Configuration struct {
	PriorityLevels []*flowcontrolv1.PriorityLevelConfiguration
	FlowSchemas    []*flowcontrolv1.FlowSchema
}

// Mandatory is the configuration that must exist as it is; the server puts it back whenever it differs. Only the
// exempt level's own shares are the administrator's. The objects are the caller's to change.
func Mandatory() Configuration {
	return Configuration{
		PriorityLevels: copies(bootstrap.MandatoryPriorityLevelConfigurations),
		FlowSchemas:    copies(bootstrap.MandatoryFlowSchemas),
	}
}

// Suggested is the configuration a new cluster starts with. The server keeps it current as long as the annotation
// apf.kubernetes.io/autoupdate-spec of the object says so. The objects are the caller's to change.
func Suggested() Configuration {
	return Configuration{
		PriorityLevels: copies(bootstrap.SuggestedPriorityLevelConfigurations),
		FlowSchemas:    copies(bootstrap.SuggestedFlowSchemas),
	}
}

func copies[T interface{ DeepCopy() T }](objs []T) []T {
	out := make([]T, len(objs))
	for i, obj := range objs {
		out[i] = obj.DeepCopy()
	}
	return out
}
