package controllers_test

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	apimeta "k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"skiff/test/world"
)

type storageMigration = storagemigrationv1.StorageVersionMigration

// migrationOf is a migration of a resource of the core group.
func migrationOf(name, resource string) *storageMigration {
	return &storageMigration{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: storagemigrationv1.StorageVersionMigrationSpec{Resource: metav1.GroupResource{Resource: resource}}}
}

// playMigrations migrates a resource twice, and one that cannot be migrated.
func playMigrations(w *world.World) {
	world.Create(w, &corev1.ConfigMap{ObjectMeta: meta("thing")})
	world.Create(w, migrationOf("first", "configmaps"))
	world.Create(w, migrationOf("second", "configmaps"))
	world.Create(w, migrationOf("impossible", "componentstatuses"))
	w.Pass(time.Hour)
}

// actMigrations creates or removes a migration, or an object that is migrated.
func actMigrations(w *world.World) {
	switch name := world.Pick(w, "a", "b", "c"); {
	case w.Chance(0.3):
		ensure(w, &corev1.ConfigMap{ObjectMeta: meta(name)}, func(obj *corev1.ConfigMap) { obj.Data = map[string]string{"time": time.Now().String()} })
	case world.Gone[*storageMigration](w, "", name):
		world.Create(w, migrationOf(name, world.Pick(w, "configmaps", "secrets", "componentstatuses")))
	case w.Chance(0.5):
		w.Remove(world.Get[*storageMigration](w, "", name))
	}
}

// checkMigrations: every migration has ended, with success if that is possible.
func checkMigrations(w *world.World) {
	for _, obj := range world.List[*storageMigration](w) {
		want := storagemigrationv1.MigrationSucceeded
		if obj.Spec.Resource.Resource == "componentstatuses" {
			want = storagemigrationv1.MigrationFailed
		}
		if !apimeta.IsStatusConditionTrue(obj.Status.Conditions, string(want)) || !apimeta.IsStatusConditionFalse(obj.Status.Conditions, string(storagemigrationv1.MigrationRunning)) {
			w.T.Errorf("%s of %s: %+v", obj.Name, obj.Spec.Resource.Resource, obj.Status)
		}
	}
}
