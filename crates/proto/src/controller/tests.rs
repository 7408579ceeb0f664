//! What a controller answers, command by command.

mod admin;
mod connect;
mod feature;
mod identify;
mod instance;
mod io;
mod log;
mod property;
mod registration;
mod space;
