package storagemigration

import (
	"strings"
	"time"

	storagemigrationv1 "k8s.io/api/storagemigration/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/validation"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	metavalidation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	utilvalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"skiff/internal/kind"
)

// StorageVersionMigration requests that every object of one resource be rewritten.
var StorageVersionMigration = kind.Of(kind.Definition[*storagemigrationv1.StorageVersionMigration]{
	GVK: storagemigrationv1.SchemeGroupVersion.WithKind("StorageVersionMigration"), StorageVersion: "v1beta1", Plural: "storageversionmigrations",
	List:                    &storagemigrationv1.StorageVersionMigrationList{},
	Validate:                validateMigration,
	CopyStatus:              func(to, from *storagemigrationv1.StorageVersionMigration) { to.Status = from.Status },
	ValidateStatus:          validateStatus,
	StatusOnly:              true,
	DenyUnconditionalUpdate: true,
	Columns: []metav1.TableColumnDefinition{
		kind.Column("Name", "string", metav1.ObjectMeta{}.SwaggerDoc()["name"]),
		kind.Column("Resource", "string", "GroupResource to migrate"),
		kind.Column("Status", "string", "Status of the migration"),
	},
	Row: func(migration *storagemigrationv1.StorageVersionMigration, _ time.Time) []any {
		status := "Unknown"
		for _, condition := range migration.Status.Conditions {
			switch storagemigrationv1.MigrationConditionType(condition.Type) {
			case storagemigrationv1.MigrationRunning, storagemigrationv1.MigrationFailed, storagemigrationv1.MigrationSucceeded:
				if condition.Status == metav1.ConditionTrue {
					status = condition.Type
				}
			}
		}
		return []any{migration.Name, migration.Spec.Resource.String(), status}
	},
})

func validateMigration(_ *kind.Request, migration, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	var errs field.ErrorList
	resource, path := migration.Spec.Resource, field.NewPath("spec", "resource")
	if resource.Resource == "" {
		errs = append(errs, field.Required(path.Child("resource"), "resource is required to be set"))
	} else if messages := utilvalidation.IsDNS1035Label(resource.Resource); len(messages) > 0 {
		errs = append(errs, field.Invalid(path.Child("resource"), resource.Resource, strings.Join(messages, ",")))
	}
	if resource.Group != "" {
		if messages := utilvalidation.IsDNS1123Subdomain(resource.Group); len(messages) > 0 {
			errs = append(errs, field.Invalid(path.Child("group"), resource.Group, strings.Join(messages, ",")))
		}
	}
	if old != nil {
		errs = append(errs, validation.ValidateImmutableField(migration.Spec, old.Spec, field.NewPath("spec"))...)
	}
	return errs
}

// validateStatus: the resourceVersion that the migration started from is set once, and the final conditions do not change.
func validateStatus(_ *kind.Request, migration, old *storagemigrationv1.StorageVersionMigration) field.ErrorList {
	var errs field.ErrorList
	path := field.NewPath("status")
	version := migration.Status.ResourceVersion
	if version != "" {
		if _, err := resourceversion.CompareResourceVersion(version, version); err != nil {
			errs = append(errs, field.Invalid(path.Child("resourceVersion"), version, err.Error()))
		}
	}
	conditions := path.Child("conditions")
	errs = append(errs, metavalidation.ValidateConditions(migration.Status.Conditions, conditions)...)
	if old.Status.ResourceVersion != "" && old.Status.ResourceVersion != version {
		errs = append(errs, field.Invalid(path.Child("resourceVersion"), version, "field is immutable"))
	}
	succeeded, failed := isTrue(migration, storagemigrationv1.MigrationSucceeded), isTrue(migration, storagemigrationv1.MigrationFailed)
	if succeeded && failed {
		errs = append(errs, field.Invalid(conditions, migration.Status.Conditions, "Both success and failed conditions cannot be true at the same time"))
	}
	if isTrue(old, storagemigrationv1.MigrationSucceeded) && !succeeded {
		errs = append(errs, field.Invalid(conditions, migration.Status.Conditions, "Success condition cannot be set to false once it is true"))
	}
	if isTrue(old, storagemigrationv1.MigrationFailed) && !failed {
		errs = append(errs, field.Invalid(conditions, migration.Status.Conditions, "Failed condition cannot be set to false once it is true"))
	}
	return errs
}

func isTrue(migration *storagemigrationv1.StorageVersionMigration, condition storagemigrationv1.MigrationConditionType) bool {
	return meta.IsStatusConditionTrue(migration.Status.Conditions, string(condition))
}
