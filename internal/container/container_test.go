package container

import (
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// TestAllKnowsEveryList fails when a pod gets a list of containers that All does not walk.
func TestAllKnowsEveryList(t *testing.T) {
	spec := &corev1.PodSpec{}
	want := 0
	value := reflect.ValueOf(spec).Elem()
	for i := range value.NumField() {
		list := value.Field(i)
		if list.Kind() != reflect.Slice {
			continue
		}
		item := list.Type().Elem()
		if item == reflect.TypeFor[corev1.Container]() || item == reflect.TypeFor[corev1.EphemeralContainer]() {
			list.Set(reflect.MakeSlice(list.Type(), 2, 2))
			want += 2
		}
	}
	seen := map[*corev1.Container]bool{}
	for _, c := range All(spec) {
		c.Image = "changed"
		seen[c] = true
	}
	if len(seen) != want || want != 6 {
		t.Errorf("walked %d containers of %d", len(seen), want)
	}
	if spec.EphemeralContainers[1].Image != "changed" || spec.InitContainers[0].Image != "changed" {
		t.Error("what is walked is a copy")
	}
}

func TestPlaces(t *testing.T) {
	spec := &corev1.PodSpec{
		InitContainers: make([]corev1.Container, 1), Containers: make([]corev1.Container, 2), EphemeralContainers: make([]corev1.EphemeralContainer, 1),
	}
	var got []string
	for place := range Locations(spec, field.NewPath("spec")) {
		got = append(got, place.Path.String())
	}
	want := []string{"spec.initContainers[0]", "spec.containers[0]", "spec.containers[1]", "spec.ephemeralContainers[0]"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	for range Locations(spec, field.NewPath("spec")) {
		break // ending early must not go on walking
	}
	if Init.String()+Regular.String()+Ephemeral.String() != "init containercontainerephemeral container" {
		t.Error("the kinds are called otherwise in messages")
	}
}
