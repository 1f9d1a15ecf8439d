// Package flowcontrol has the kinds of flowcontrol.apiserver.k8s.io: flow schemas, which assign requests to flows, and
// priority levels, which give flows their share of the server. It also has the objects that a server creates for itself
// when it starts, without which no request could be classified.
package flowcontrol

import (
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	"k8s.io/apiserver/pkg/apis/flowcontrol/bootstrap"

	"skiff/internal/kind"
)

// Kinds are the kinds of the group.
func Kinds() []*kind.Kind {
	return []*kind.Kind{FlowSchema, PriorityLevelConfiguration}
}

// Configuration is a set of priority levels and the flow schemas that refer to them.
type Configuration struct {
	PriorityLevels []*flowcontrolv1.PriorityLevelConfiguration
	FlowSchemas    []*flowcontrolv1.FlowSchema
}

// Mandatory is the configuration that must not be changed; the server restores it. Only the shares of the exempt level may
// be changed. The caller may modify the objects.
func Mandatory() Configuration {
	return Configuration{
		PriorityLevels: copies(bootstrap.MandatoryPriorityLevelConfigurations),
		FlowSchemas:    copies(bootstrap.MandatoryFlowSchemas),
	}
}

// Suggested is the configuration of a new cluster. The server updates an object as long as its annotation
// apf.kubernetes.io/autoupdate-spec says so. The caller may modify the objects.
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
