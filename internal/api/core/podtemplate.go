package core

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/api/podspec"
	"skiff/internal/kind"
)

// PodTemplate is a pod template as an object of its own.
var PodTemplate = kind.Of(kind.Definition[*corev1.PodTemplate]{
	GVK: corev1.SchemeGroupVersion.WithKind("PodTemplate"), Plural: "podtemplates", Namespaced: true, List: &corev1.PodTemplateList{},

	Default: func(obj *corev1.PodTemplate) { podspec.DefaultTemplate(&obj.Template) },
	Prepare: func(_ *kind.Request, obj, old *corev1.PodTemplate) {
		podspec.DropDisabledTemplate(&obj.Template, templateOf(old))
	},
	Validate: func(_ *kind.Request, obj, old *corev1.PodTemplate) field.ErrorList {
		return podspec.ValidateTemplate(&obj.Template, templateOf(old), field.NewPath("template"))
	},
	Warn: func(obj, old *corev1.PodTemplate) []string {
		if old != nil && !podTemplateChanged(obj, old) {
			return nil
		}
		return podspec.WarnTemplate(field.NewPath("template"), &obj.Template, templateOf(old))
	},
	SpecChanged: podTemplateChanged,

	Columns: []metav1.TableColumnDefinition{
		kind.NameColumn(),
		kind.Column("Containers", "string", "Names of each container in the template."),
		kind.Column("Images", "string", "Images referenced by each container in the template."),
		kind.Column("Pod Labels", "string", "The labels for the pod template."),
	},
	Row: func(obj *corev1.PodTemplate, _ time.Time) []any {
		names, images := containerCells(obj.Template.Spec.Containers)
		return []any{obj.Name, names, images, labels.FormatLabels(obj.Template.Labels)}
	},
	ReturnDeleted: true,
})

func podTemplateChanged(obj, old *corev1.PodTemplate) bool {
	return !equality.Semantic.DeepEqual(&obj.Template, &old.Template)
}

func templateOf(obj *corev1.PodTemplate) *corev1.PodTemplateSpec {
	if obj == nil {
		return nil
	}
	return &obj.Template
}

// containerCells are the names and images of containers for tables.
func containerCells(containers []corev1.Container) (names, images string) {
	var n, i []string
	for _, c := range containers {
		n, i = append(n, c.Name), append(i, c.Image)
	}
	return strings.Join(n, ","), strings.Join(i, ",")
}
