package storagemigration

import (
	"reflect"
	"testing"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/internal/kind/kindtest"
)

func of(group, resource string) *storagemigrationv1.StorageVersionMigration {
	return &storagemigrationv1.StorageVersionMigration{
		ObjectMeta: metav1.ObjectMeta{Name: "m"},
		Spec:       storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Group: group, Resource: resource}},
	}
}

func with(version string, types ...storagemigrationv1.MigrationConditionType) *storagemigrationv1.StorageVersionMigration {
	m := of("", "pods")
	m.Status.ResourceVersion = version
	for _, typ := range types {
		m.Status.Conditions = append(m.Status.Conditions, metav1.Condition{
			Type: string(typ), Status: metav1.ConditionTrue, Reason: "R", LastTransitionTime: metav1.Unix(1, 0),
		})
	}
	return m
}

func TestSpec(t *testing.T) {
	for _, test := range []struct {
		name     string
		obj, old *storagemigrationv1.StorageVersionMigration
		want     []string
	}{
		{name: "valid", obj: of("apps", "deployments")},
		{name: "core", obj: of("", "pods")},
		{name: "empty", obj: of("", ""), want: []string{"spec.resource.resource: Required value: resource is required to be set"}},
		{name: "bad", obj: of("Apps", "Pods"), want: []string{"spec.resource.resource: Invalid value", "spec.resource.group: Invalid value"}},
		{name: "same", obj: of("", "pods"), old: of("", "pods")},
		{name: "changed", obj: of("", "pods"), old: of("", "nodes"), want: []string{"spec: Invalid value: field is immutable"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.old == nil {
				_, errs := kindtest.Create(StorageVersionMigration, nil, test.obj)
				kindtest.Errors(t, errs, test.want...)
				return
			}
			_, errs := kindtest.Update(StorageVersionMigration, nil, test.obj, test.old)
			kindtest.Errors(t, errs, test.want...)
		})
	}
}

func TestStatus(t *testing.T) {
	for _, test := range []struct {
		name     string
		obj, old *storagemigrationv1.StorageVersionMigration
		want     []string
	}{
		{name: "running", obj: with("5", "Running"), old: with("")},
		{name: "bad version", obj: with("x"), old: with(""), want: []string{"status.resourceVersion: Invalid value"}},
		{name: "other version", obj: with("6"), old: with("5"), want: []string{"status.resourceVersion: Invalid value: field is immutable"}},
		{name: "both ends", obj: with("5", "Succeeded", "Failed"), old: with("5"), want: []string{"status.conditions: Invalid value: Both success and failed"}},
		{name: "unsucceeded", obj: with("5"), old: with("5", "Succeeded"), want: []string{"status.conditions: Invalid value: Success condition cannot"}},
		{name: "unfailed", obj: with("5"), old: with("5", "Failed"), want: []string{"status.conditions: Invalid value: Failed condition cannot"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, errs := kindtest.UpdateSubresource(StorageVersionMigration, "status", nil, test.obj, test.old)
			kindtest.Errors(t, errs, test.want...)
		})
	}
}

func TestRow(t *testing.T) {
	got := StorageVersionMigration.Row(with("5", "Running"), time.Now())
	if want := []any{"m", "pods", "Running"}; !reflect.DeepEqual(got, want) {
		t.Errorf("row = %v, want %v", got, want)
	}
	got = StorageVersionMigration.Row(of("apps", "deployments"), time.Now())
	if want := []any{"m", "deployments.apps", "Unknown"}; !reflect.DeepEqual(got, want) {
		t.Errorf("row = %v, want %v", got, want)
	}
}
