"""An arm with 7 joints and a gripper: reaching for poses, lifting a cube."""
