package quota

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const countPrefix = "count/"

// CountName returns the name under which a quota counts the objects of a resource.
func CountName(resource schema.GroupResource) corev1.ResourceName {
	return corev1.ResourceName(countPrefix + resource.String())
}

// countedResource returns the resource of a name of the form count/resource.group.
func countedResource(name corev1.ResourceName) (schema.GroupResource, bool) {
	text, ok := strings.CutPrefix(string(name), countPrefix)
	if !ok {
		return schema.GroupResource{}, false
	}
	return schema.ParseGroupResource(text), true
}

// countEvaluator counts objects, under their count/ name and under legacy names.
func countEvaluator(resource schema.GroupResource, aliases ...corev1.ResourceName) *Evaluator {
	names := append([]corev1.ResourceName{CountName(resource)}, aliases...)
	one := corev1.ResourceList{}
	for _, name := range names {
		one[name] = count(1)
	}
	return &Evaluator{
		Resource:     resource,
		counts:       func(name corev1.ResourceName) bool { return slices.Contains(names, name) },
		usage:        func(runtime.Object, time.Time) (corev1.ResourceList, error) { return one, nil },
		affectsUsage: func(w Write) bool { return w.Subresource == "" && w.Old == nil },
	}
}
